"""Reading tables: statistics, queries, scans."""
