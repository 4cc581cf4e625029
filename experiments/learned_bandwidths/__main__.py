import sys

from experiments.learned_bandwidths.run import main

sys.exit(main())
