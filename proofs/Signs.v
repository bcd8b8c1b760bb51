(* The sensitivity of changes with signs (src/evercount/factorizations/sensitivity.proof.md): if all entries of the Gram
   matrix G = R^T R lie between 0 and c^2, then |R d|^2 = sum G(i,j) d(i) d(j) <= c^2 (P^2 + N^2), P and N the sums of the
   positive and of the negative parts of d. *)

Require Import Reals List Lra.
Import ListNotations.
Open Scope R_scope.

Section Signs.
  Variable G : nat -> nat -> R.
  Variable c2 : R.
  Hypothesis entries : forall i j, 0 <= G i j <= c2.

  Fixpoint sum (f : nat -> R) (ticks : list nat) : R :=
    match ticks with
    | [] => 0
    | t :: rest => f t + sum f rest
    end.

  Definition form (a b : nat -> R) (ticks : list nat) : R :=
    sum (fun i => a i * sum (fun j => b j * G i j) ticks) ticks.

  Lemma sum_minus : forall f g ticks, sum (fun t => f t - g t) ticks = sum f ticks - sum g ticks.
  Proof. induction ticks; simpl; lra. Qed.

  Lemma sum_scaled : forall s f ticks, sum (fun t => f t * s) ticks = sum f ticks * s.
  Proof. induction ticks; simpl; lra. Qed.

  Lemma sum_equal : forall f g ticks, (forall t, f t = g t) -> sum f ticks = sum g ticks.
  Proof. intros f g ticks same; induction ticks; simpl; [reflexivity | rewrite same, IHticks; reflexivity]. Qed.

  Lemma sum_monotone : forall f g ticks, (forall t, f t <= g t) -> sum f ticks <= sum g ticks.
  Proof. intros f g ticks less; induction ticks; simpl; [lra | pose proof (less a); lra]. Qed.

  Lemma sum_nonnegative : forall f ticks, (forall t, 0 <= f t) -> 0 <= sum f ticks.
  Proof. intros f ticks positive; induction ticks; simpl; [lra | pose proof (positive a); lra]. Qed.

  Lemma form_bounds : forall a b ticks, (forall t, 0 <= a t) -> (forall t, 0 <= b t) ->
    0 <= form a b ticks <= c2 * (sum a ticks * sum b ticks).
  Proof.
    intros a b ticks pa pb; unfold form; split.
    - apply sum_nonnegative; intro i. apply Rmult_le_pos; [apply pa |].
      apply sum_nonnegative; intro j. apply Rmult_le_pos; [apply pb | apply entries].
    - replace (c2 * (sum a ticks * sum b ticks)) with (sum a ticks * (sum b ticks * c2)) by ring.
      rewrite <- sum_scaled. apply sum_monotone; intro i.
      apply Rmult_le_compat_l; [apply pa |].
      rewrite <- sum_scaled. apply sum_monotone; intro j.
      apply Rmult_le_compat_l; [apply pb | apply entries].
  Qed.

  Lemma form_of_differences : forall p n ticks,
    form (fun t => p t - n t) (fun t => p t - n t) ticks
    = form p p ticks - form p n ticks - form n p ticks + form n n ticks.
  Proof.
    intros p n ticks; unfold form.
    assert (inner : forall i, sum (fun j => (p j - n j) * G i j) ticks
                              = sum (fun j => p j * G i j) ticks - sum (fun j => n j * G i j) ticks).
    { intro i. rewrite <- sum_minus. apply sum_equal; intro; ring. }
    rewrite (sum_equal _ (fun i => (p i * sum (fun j => p j * G i j) ticks - p i * sum (fun j => n j * G i j) ticks)
                                   - (n i * sum (fun j => p j * G i j) ticks
                                      - n i * sum (fun j => n j * G i j) ticks)));
      [| intro i; rewrite inner; ring].
    rewrite !sum_minus. ring.
  Qed.

  Theorem changes_with_signs : forall p n ticks, (forall t, 0 <= p t) -> (forall t, 0 <= n t) ->
    form (fun t => p t - n t) (fun t => p t - n t) ticks
    <= c2 * (sum p ticks * sum p ticks + sum n ticks * sum n ticks).
  Proof.
    intros p n ticks pp pn. rewrite form_of_differences.
    pose proof (form_bounds p p ticks pp pp). pose proof (form_bounds n n ticks pn pn).
    pose proof (form_bounds p n ticks pp pn). pose proof (form_bounds n p ticks pn pp).
    lra.
  Qed.
End Signs.
