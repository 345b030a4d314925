"""Reports on what the tables hold: chargeback, service level, rightsizing; and pages with charts."""
