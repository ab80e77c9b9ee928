"""yoursummary."""
