"""What a broker counts (stats), and what Prometheus is told of it, with Java's names (families)."""
