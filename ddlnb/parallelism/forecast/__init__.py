"""How fast a layout trains a model and what memory it needs, fitted to published runs."""
