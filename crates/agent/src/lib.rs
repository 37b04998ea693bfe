//! The node agent: memory sources, attribution, integrator, spool, uploader, and the local socket.
