import sys

from experiments.categories.run import main

sys.exit(main())
