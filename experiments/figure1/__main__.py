import sys

from experiments.figure1.run import main

sys.exit(main())
