"""The rewrite rules, each in a module of its own."""
