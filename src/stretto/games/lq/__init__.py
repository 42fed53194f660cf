"""Linear-quadratic games: exact equilibria of any number of players, and players who don't know of each other."""
