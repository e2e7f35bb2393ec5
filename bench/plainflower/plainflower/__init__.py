"""A plain Flower app: what fedmt over Flower is measured against."""
