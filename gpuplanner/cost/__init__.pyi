"""Public names of the package and the modules that hold them: for type checkers, and loaded when used."""

from gpuplanner.cost.energy_and_carbon import Facility as Facility
from gpuplanner.cost.energy_and_carbon import RangedAmount as RangedAmount
from gpuplanner.cost.energy_and_carbon import footprint as footprint
from gpuplanner.cost.energy_and_carbon import measured_energy as measured_energy
from gpuplanner.cost.energy_and_carbon import sum_amount as sum_amount
from gpuplanner.cost.energy_and_carbon import sum_by_state as sum_by_state
from gpuplanner.cost.monthly_cost_review import cost_review as cost_review
from gpuplanner.cost.showback import Rate as Rate
from gpuplanner.cost.showback import showback as showback
from gpuplanner.cost.showback import split_cost as split_cost
