import sys

from experiments.convergence.run import main

sys.exit(main())
