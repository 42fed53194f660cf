"""Exact bias and variance of doubly corrected gradients on a token tree (COPC, arXiv 2610.09597)."""
