"""Training steps to plan: models by the count of their storages, random graphs, saved profiles."""
