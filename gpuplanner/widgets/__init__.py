"""What-if controls for notebooks: they build a scenario, evaluate it and show the study."""

from gpuplanner.widgets.whatif import WhatIf, whatif

__all__ = ["WhatIf", "whatif"]
