"""Enqueues a job by the generated client, claims it and completes it; prints the job's id."""

import os

from winch_client import AuthenticatedClient
from winch_client.api.jobs import get_jobs_id, post_jobs
from winch_client.api.work import post_jobs_id_complete, post_queues_queue_claim
from winch_client.models import ClaimBody, CompleteBody, NewJobBody, NewJobBodyArgs

client = AuthenticatedClient(os.environ["WINCH_SERVER"], os.environ["WINCH_TOKEN"])
args = NewJobBodyArgs.from_dict({"image": "a.png", "size": {"width": 100}})
stored = post_jobs.sync(client=client, body=NewJobBody(task="gen.resize", args=args))
claim = ClaimBody(worker="python-1", wait="5s")
for job in post_queues_queue_claim.sync("gen", client=client, body=claim).jobs:
    end = CompleteBody(token=job.token, result={"got": job.args})
    post_jobs_id_complete.sync(str(job.id), client=client, body=end)
missing = get_jobs_id.sync_detailed("01a00000-0000-7000-8000-000000000000", client=client)
assert missing.status_code == 404, missing
print(stored.id)  # noqa: T201
