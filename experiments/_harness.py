"""Names that the benchmarks import; they are defined in `experiments.lib`."""

from experiments.lib.command_line import add_common_arguments as add_common_arguments
from experiments.lib.command_line import main as main
from experiments.lib.command_line import progress as progress
from experiments.lib.results import machine as machine
from experiments.lib.results import write_results as write_results
from experiments.lib.tables import print_table as print_table
from experiments.lib.timing import in_turn as in_turn
from experiments.lib.timing import timed as timed
