"""Any program: its command line, its process, the steps that it makes and the numbers that it prints."""
