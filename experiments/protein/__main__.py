import sys

from experiments.protein.run import main

sys.exit(main())
