from aks_flex_rp.cli import main

main()
