"""Public names of the package and the modules that hold them: for type checkers, and loaded when used."""

from gpuplanner.cost.energy_and_carbon import Facility as Facility
from gpuplanner.cost.energy_and_carbon import RangedAmount as RangedAmount
from gpuplanner.cost.energy_and_carbon import by_state as by_state
from gpuplanner.cost.energy_and_carbon import footprint as footprint
from gpuplanner.cost.energy_and_carbon import measured_energy as measured_energy
from gpuplanner.cost.energy_and_carbon import total_of as total_of
from gpuplanner.cost.showback import Rate as Rate
from gpuplanner.cost.showback import allocated as allocated
from gpuplanner.cost.showback import showback as showback
