//! HTTP: router, credentials, request and response types, errors to statuses, the OpenAPI document.
