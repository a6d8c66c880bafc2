"""The PostgreSQL driver: any number of processes on any number of machines."""
