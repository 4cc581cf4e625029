import sys

from experiments.kjit.run import main

sys.exit(main())
