SELECT pg_has_role(datdba, 'USAGE') FROM pg_database WHERE datname = current_database()
