"""A datastore of what silos have translated: quantised, sealed, merged, and asked while translating."""
