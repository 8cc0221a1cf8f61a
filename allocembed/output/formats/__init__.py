"""The formats of vector tables, a file each: a context manager that gives a function to write a row with."""
