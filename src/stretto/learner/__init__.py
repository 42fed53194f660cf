"""The learner: optimizer step, critic, checkpoints. ``stretto.learner.learner.Learner`` is the way in."""
