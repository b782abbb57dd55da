module multihost/test/kube

go 1.26.8

require multihost v0.0.0

replace multihost => ../..
require golang.org/x/sys v0.50.0
require k8s.io/api v0.35.4
require k8s.io/apimachinery v0.35.4
require k8s.io/client-go v0.35.4
require sigs.k8s.io/jobset v0.11.1
require sigs.k8s.io/kueue v0.17.0
require sigs.k8s.io/yaml v1.6.0
