//! Use cases: one public function is one transaction; the scheduler loop; recurring tasks.
