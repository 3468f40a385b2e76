r"""What is known without counterfactuals, and how a generator can be refuted by it.

If the graph is right, the image of a patient under :math:`do(A = a_k)`, with the other parents
:math:`c` and the label :math:`y` held, has the law of the images that were observed with
:math:`A = a_k` among patients with the same :math:`c` and :math:`y`. So whatever happens in a
*single* world is identified from observed scores, without any generator:

.. math:: \psi_k = E_{c, y}\big[ E[ f(g(X), Y) \mid A = a_k, C = c, Y = y ] \big]

Here :math:`f` is the score, the loss, or whether the score is below a threshold.
:mod:`~cfcore.standardise.estimate` estimates it; :mod:`~cfcore.standardise.check` compares it with
what counterfactuals score. What joins two worlds of a patient, as :math:`S_\mathrm{var}` does, is
not identified: :mod:`~cfcore.standardise.bounds` says between which ends it lies, and
:mod:`~cfcore.standardise.transport` guesses it, without any image, by one assumption more.

For a total effect, leave what follows the attributes out of what is held: if the label does not
follow it, observed patients at :math:`a_k` have it as it would follow.
"""
