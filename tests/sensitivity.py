"""How small an error the verdicts catch: every element of a right gradient is changed by a factor, one at a time."""

import dataclasses

import numpy as np

from bridge.answers import blocks

FACTOR = {"float32": 1e-4, "float64": 1e-10}


@dataclasses.dataclass
class Caught:
    """Counts over cases; ``quiet`` are arrays whose noise floor is at most 4 eps of their largest element."""

    dtype: str
    large: int = 0
    large_caught: int = 0
    large_quiet: int = 0
    large_quiet_caught: int = 0
    medium: int = 0
    medium_caught: int = 0

    def add(self, case, known):
        """Change each element of each gradient of the case on its own and look whether its tolerance is passed."""
        eps = np.finfo(self.dtype).eps
        least = {"float32": 0.01, "float64": 1e-3}[self.dtype]
        for quantity in case.quantities:
            pairs = zip(
                blocks(known.reference[quantity]), blocks(known.sigma[quantity]), known.tolerance(quantity), strict=True
            )
            for (_, _, reference), (_, _, sigma), tolerance in pairs:
                size = np.abs(reference)
                top = size.max()
                if not 0 < top < np.inf:
                    continue
                found = FACTOR[self.dtype] * size > tolerance
                large, medium = size >= 0.1 * top, size > least * top
                self.large += int(large.sum())
                self.large_caught += int((found & large).sum())
                self.medium += int(medium.sum())
                self.medium_caught += int((found & medium).sum())
                if sigma.max() <= 4 * eps * top:
                    self.large_quiet += int(large.sum())
                    self.large_quiet_caught += int((found & large).sum())

    def __str__(self):
        least = {"float32": "0.01", "float64": "1e-3"}[self.dtype]
        return (
            f"{self.dtype}, factor 1 + {FACTOR[self.dtype]:g}: caught {self.medium_caught}/{self.medium} "
            f"({self.medium_caught / max(self.medium, 1):.2%}) of elements above {least} of the maximum, "
            f"{self.large_quiet_caught}/{self.large_quiet} of those of at least 0.1 where the noise floor is <= 4 eps"
        )
