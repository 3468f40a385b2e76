r"""The image mechanism: a conditional variational autoencoder, with latents in space if wanted.

The image is :math:`x = \mu(z_{1:L}, \mathbf{pa}) + r`. Its exogenous noise is all that the parents
do not say: the latents :math:`z_{1:L}`, and the residual :math:`r` that the decoder does not
explain. The paper's latents are a hierarchy from the whole image down to patches, and this module
can have them; the generators of the book have one code for the whole image and no others. A
counterfactual holds the noise, replaces the parents, and decodes again:

.. math:: \tilde{x} = x + \mu(z_{1:L}, \widetilde{\mathbf{pa}}) - \mu(z_{1:L}, \mathbf{pa})
"""

import math
from collections.abc import Mapping

import torch
from torch import Tensor, nn

from cfscm.encoding import expanded
from cfscm.layers import Decoder, Encoder, ImageConfig, Normal, Pick, Scale
from cfscm.training import Images

__all__ = ["ImageConfig", "ImageMechanism"]


class ImageMechanism(nn.Module):
    r"""The mechanism of the image: :math:`x = \mu(z_{1:L}, \mathbf{pa}) + r`.

    Example:
        >>> image = ImageMechanism(ImageConfig(size=32, widths=(8, 8), latents=(0, 2), code=5))
        >>> x, c = torch.rand(3, 1, 32, 32), torch.rand(3, 7)
        >>> noise = image.abduct(x, c)
        >>> {name: tuple(value.shape) for name, value in noise.items()}
        {'z0': (3, 5, 1, 1), 'z1': (3, 2, 4, 4), 'residual': (3, 1, 32, 32)}
        >>> torch.allclose(image.predict(noise, c), x, atol=1e-5)
        True
    """

    def __init__(self, config: ImageConfig) -> None:
        super().__init__()
        self.config, self.scale = config, Scale(config.headroom)
        width = config.embedding
        layers = [nn.Linear(config.parents, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()]
        self.embed = nn.Sequential(*layers)
        self.average = nn.Linear(config.parents + config.code, config.channels * config.size**2)
        self.encoder, self.decoder = Encoder(config), Decoder(config)
        terms = len(expanded(torch.zeros(1, config.parents))[0])
        self.register_buffer("drift", torch.zeros(terms, config.code))
        shape = (1, config.channels, config.size, config.size)
        self.log_sd = nn.Parameter(torch.full(shape, math.log(0.1)))

    def terms(self, x: Tensor, c: Tensor, rng: torch.Generator | None) -> tuple[Tensor, Tensor]:
        r"""The two terms of the evidence lower bound :math:`\mathcal{L}(x, y)`.

        .. math:: \mathcal{L}(x, \mathbf{pa}) = \mathbb{E}_{q(z \mid x, \mathbf{pa})}
            \log p(x \mid z, \mathbf{pa}) - \mathrm{KL}\big(q(z \mid x, \mathbf{pa})
            \,\|\, p(z)\big)

        The likelihood is normal on the scale of the networks, with a deviation for each pixel
        that is learned.

        They are the expected log-likelihood and the divergence of each image in nats, each (B,);
        the posterior is drawn from ``rng``.
        """
        return self.shared_terms(x, c, c, None, rng)

    def shared_terms(
        self, x: Tensor, seen: Tensor, c: Tensor, rows: Tensor | None, rng: torch.Generator | None
    ) -> tuple[Tensor, Tensor]:
        r"""The two terms of the bound for several parents of one image, which is encoded once.

        The encoder knows the parents ``seen``, the same for all decodings of an image. That is no
        approximation: any posterior of the code gives a bound, and this one still depends on the
        parents of each decoding by the state of the decoder.

        Args:
            x: The images, shape (B, C, H, W), in [0, 1].
            seen: The parents that the encoder knows, shape (B, D).
            c: The parents of each decoding, shape (P, D).
            rows: The image of each decoding, shape (P,); ``None`` if there is one for each.
            rng: The source of the draws of the posterior.
        """
        t, slope = self.scale.apply(x), self.scale.log_slope(x)
        mean, _, kl = self._posterior_pass(t, seen, c, rows, rng)
        if rows is not None:
            t, slope = t[rows], slope[rows]
        standard = (t - mean) * (-self.log_sd).exp()
        density = -0.5 * (standard * standard + math.log(2 * math.pi)) - self.log_sd + slope
        return density.flatten(1).sum(dim=1), kl

    def abduct(self, x: Tensor, c: Tensor, rng: torch.Generator | None = None) -> dict[str, Tensor]:
        r"""Infers the exogenous noise of images.

        With the exogenous prior the latents :math:`z_l` are the noise. With the conditional one
        it is :math:`\epsilon_l = (z_l - \mu_p) / \sigma_p`. With the regressed one it is what the
        parents do not say of the code, :math:`z - \mathrm{E}[z \mid \mathbf{pa}]`.

        Args:
            x: The images, shape (B, C, H, W), in [0, 1].
            c: Their parents as vectors, shape (B, D).
            rng: The source of randomness of a sampled posterior; its mean is taken without one.

        Returns:
            The noise of every level, ``z0``, ..., and the ``residual``; leave the latter out to
            decode what the latents alone explain.
        """
        t = self.scale.apply(x)
        mean, noise, _ = self._posterior_pass(t, c, c, None, rng)
        noise["z0"] = noise["z0"] - self._drift(c)
        return {**noise, "residual": t - mean}

    @torch.inference_mode()
    def centre(self, images: Images, c: Tensor, *, shrink: float = 0.0) -> None:
        r"""Fits the mean of the code given the parents, :math:`\mathrm{E}[z \mid \mathbf{pa}]`.

        A decoder that is told the code has little use for the parents: the code says what they
        would. So the code is not independent of them, and held under an intervention it keeps
        what should change. Its mean, a quadratic function of the parents fitted by least squares,
        is taken off in abduction and put back under the new parents in prediction. It does nothing
        unless the prior is ``"regressed"``.

        Args:
            images: The training images, N of them.
            c: Their parents as vectors, shape (N, D).
            shrink: How far the coefficients of squares and products are shrunk: the penalty on the
                sum of their squares, for each image.
        """
        if self.config.prior != "regressed":
            return
        self.drift.zero_()
        parts = []
        for rows in torch.arange(len(c)).split(128):
            x, own = (part[rows].to(self.drift.device) for part in (images, c))
            parts.append(self.abduct(x, own)["z0"].flatten(1).cpu())
        terms = expanded(c).double()
        penalty = torch.full_like(terms[0], 1e-3)
        penalty[1 + c.shape[1] :] += shrink * len(c)
        gram = terms.T @ terms + torch.diag(penalty)
        self.drift.copy_(torch.linalg.solve(gram, terms.T @ torch.cat(parts).double()))

    def _drift(self, c: Tensor) -> Tensor:
        return (expanded(c) @ self.drift)[:, :, None, None]

    def predict(self, noise: Mapping[str, Tensor], c: Tensor) -> Tensor:
        r"""Draws the images that the noise, with or without its residual, gives under the parents.

        They have shape (B, C, H, W), in [0, 1]; the parents ``c`` are vectors, shape (B, D).
        """
        mean = self.mean(noise, c)
        t = mean + noise["residual"] if "residual" in noise else mean
        return self.scale.invert(t).clamp(0, 1)

    def mean(self, noise: Mapping[str, Tensor], c: Tensor) -> Tensor:
        """What the latents explain, on the scale of the networks, shape (B, C, H, W)."""

        def given(number: int, prior: Normal, h: Tensor) -> tuple[Tensor, Tensor]:
            eps = noise[f"z{number}"] if number else noise["z0"] + self._drift(c)
            return prior.at(eps), h.new_zeros(len(h))

        return self._decode(c, given)[0]

    def _posterior_pass(
        self, t: Tensor, seen: Tensor, c: Tensor, rows: Tensor | None, rng: torch.Generator | None
    ) -> tuple[Tensor, dict[str, Tensor], Tensor]:
        inputs = t.contiguous(memory_format=torch.channels_last)
        features = self.encoder(inputs, self.embed(seen))[::-1]
        noise = {}

        def inferred(number: int, prior: Normal, h: Tensor) -> tuple[Tensor, Tensor]:
            own = features[number] if rows is None else features[number][rows]
            posterior = self.decoder.levels[number].posterior_of(h, own)
            z = posterior.sample(rng)
            noise[f"z{number}"] = prior.noise(z)
            return z, posterior.divergence(prior)

        mean, kl = self._decode(c, inferred)
        return mean, noise, kl

    def _decode(self, c: Tensor, pick: Pick) -> tuple[Tensor, Tensor]:
        # A line in the parents and the code is the quick part of the mean; the decoder bends it.
        drawn, code, kl = self.decoder(self.embed(c), pick)
        return self.average(torch.cat((c, code), dim=1)).view_as(drawn) + drawn, kl
