package control

// queueLabel is the label with the name of the queue that an object waits in.
const queueLabel = "kueue.x-k8s.io/queue-name"

// queues is Kueue.
type queues struct{ *Controllers }

func (c queues) look() {}
