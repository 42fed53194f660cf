"""The learner: verbs (gradient, optimizer step, scores, checkpoints), and the whole-batch step that is made of them.

``stretto.learner.learner.Learner`` is the way in; ``result`` holds what its verbs answer, free of torch.
"""
