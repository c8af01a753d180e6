"""The translation experiment: recipes, corpora, training of each model, one report."""
