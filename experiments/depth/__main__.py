import sys

from experiments.depth.run import main

sys.exit(main())
