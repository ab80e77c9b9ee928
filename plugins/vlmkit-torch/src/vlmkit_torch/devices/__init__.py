"""What is particular to a device: choice, errors, threads and transfers."""
