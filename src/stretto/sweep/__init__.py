"""Many rehearsals of one recipe: comparisons of objectives at exact lags, calibration of step sizes."""
