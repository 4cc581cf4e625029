import sys

from experiments.multihost.run import main

sys.exit(main())
