// Package winch enqueues jobs on a Winch server and runs them, over HTTP.
//
// A task has a name, and types for its arguments and its result:
//
//	type Mail struct {
//		Order int `json:"order"`
//	}
//
//	var SendMail = winch.Task[Mail, string]{Name: "shop.mail", Queue: "mail"}
//
// A producer enqueues it:
//
//	client, err := winch.New("https://jobs.example.com", winch.Options{Token: token})
//	job, err := SendMail.Enqueue(ctx, client, Mail{Order: 7})
//	text, err := job.Result(ctx)
//
// A worker runs it:
//
//	worker := client.NewWorker(winch.WorkerOptions{Queues: []string{"mail"}})
//	SendMail.Handle(worker, func(ctx context.Context, job *winch.Job, mail Mail) (string, error) {
//		return fmt.Sprintf("sent %d", mail.Order), nil
//	})
//	err := worker.Run(ctx)
//
// A job runs at least once. The server gives a job to another worker when its worker has sent no heartbeat
// for the length of its lease; then the context of the handler is cancelled, and what it returns is
// dropped.
package winch

// Version is the version of this package.
const Version = "0.1.0"
