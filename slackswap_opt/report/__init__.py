"""What a person looks at: tables, plots and traces. It reads results only."""
