"""What is known without counterfactuals, tried on a bank of patients of the phantom."""
