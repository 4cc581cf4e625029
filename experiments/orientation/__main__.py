import sys

from experiments.orientation.run import main

sys.exit(main())
