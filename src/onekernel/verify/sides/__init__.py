"""What is compared, and where it runs."""
