-- PostgreSQL warns and does nothing before version 17, where only the owner may.
VACUUM (FREEZE) {table}
