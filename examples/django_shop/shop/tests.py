"""The shop's own tests: `python -m examples.django_shop.manage test examples.django_shop`."""

from __future__ import annotations

from django.db import connection, transaction
from django.test import TestCase, TransactionTestCase

from examples.django_shop.shop.models import Order, Receipt
from examples.django_shop.shop.tasks import count_orders, write_receipt
from winch.integrations.django import app_of
from winch.integrations.django.testing import close_all, jobs


class InOneTransaction(TestCase):
    """Each test is a transaction that is rolled back."""

    def test_an_order_gets_its_receipt(self) -> None:
        with jobs() as world:
            with self.captureOnCommitCallbacks(execute=True):
                answer = self.client.post("/orders", {"number": "7"})
            self.assertEqual(answer.status_code, 202)
            world.run_all()
            self.assertEqual(self.client.get("/orders/7").json()["status"], "SUCCESSFUL")
        self.assertEqual(Receipt.objects.get().text, "receipt for 7")

    def test_a_declined_card_leaves_nothing(self) -> None:
        with jobs() as world:
            with self.captureOnCommitCallbacks(execute=True):
                answer = self.client.post("/orders", {"number": "8", "card": "declined"})
            self.assertEqual(answer.status_code, 402)
            self.assertEqual(world.run_all(), 0)
        self.assertEqual(Order.objects.count(), 0)

    def test_the_transaction_sees_its_own_result(self) -> None:
        result = write_receipt.enqueue("9")
        self.assertEqual(write_receipt.get_result(result.id), result)

    def test_a_savepoint_takes_its_job_back(self) -> None:
        kept = write_receipt.enqueue("10")
        with self.assertRaises(ZeroDivisionError), transaction.atomic():
            lost = count_orders.enqueue()
            raise ZeroDivisionError
        write_receipt.get_result(kept.id)
        with self.assertRaisesMessage(Exception, lost.id):
            count_orders.get_result(lost.id)


class WithCommits(TransactionTestCase):
    """Each test commits, and real workers run the jobs."""

    def tearDown(self) -> None:
        for job in app_of().jobs.list(limit=1000):
            job.delete()
        close_all()  # the test runner drops the database next
        super().tearDown()

    def test_a_worker_runs_what_is_committed(self) -> None:
        if connection.vendor == "sqlite":
            self.skipTest("a worker has a connection of its own, which a database in memory has not")
        self.assertEqual(self.client.post("/orders", {"number": "11"}).status_code, 202)
        from winch.integrations.django.worker import make_app

        make_app().run_worker(queues=["mail"], burst=True)
        self.assertEqual(self.client.get("/orders/11").json()["status"], "SUCCESSFUL")
        self.assertEqual(Receipt.objects.get().text, "receipt for 11")

    def test_a_rollback_leaves_no_job(self) -> None:
        self.client.post("/orders", {"number": "12", "card": "declined"})
        self.assertEqual(app_of().jobs.list(), [])
