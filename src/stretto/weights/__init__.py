"""Versioned weights: ``layout`` says where each tensor lies, ``store`` publishes, verifies and reads them."""
