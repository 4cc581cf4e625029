import sys

from experiments.readme.run import main

sys.exit(main())
