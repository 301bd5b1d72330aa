from aks_flex_node.rp.cli import main

main()
